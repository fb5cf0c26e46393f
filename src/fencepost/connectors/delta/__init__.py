"""Delta tables, through the `deltalake` library: no jar, so it works with every Spark that we support."""
