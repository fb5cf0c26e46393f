"""What Delta and Iceberg tables share: data files that nobody sees until the table's own log names them."""
