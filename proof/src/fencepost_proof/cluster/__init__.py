"""The attack on clusters: a supervised job on two hosts, its checkpoint on HDFS or S3, and kills of every part."""
