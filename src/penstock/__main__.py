"""`python -m penstock` is `penstock`."""

from penstock.main import main

main()
