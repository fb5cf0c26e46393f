"""DuckDB as a sink: a file that is open only from the vote to the commit."""
