"""Front ends with the names, the argument order, the defaults and the result types of where they come from."""
