"""The rows of the speed table, one module for each family of work: data, and how each row's work is put together."""
