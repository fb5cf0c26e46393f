"""Iceberg tables, through the `pyiceberg` library: no jar, so it works with every Spark that we support."""
