"""Generated stubs of the protocols in `proto/`; `make proto` writes them, nobody edits them."""
