"""The `tesela` command: one file per verb, each imported only when it is called."""
