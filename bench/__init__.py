"""Measurements: Penstock beside what does nothing, beside the disk, and beside itself."""
