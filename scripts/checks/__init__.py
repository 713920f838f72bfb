"""One module a check. Each has check(root) -> list of problems, every one with the file, the line and what to do."""
