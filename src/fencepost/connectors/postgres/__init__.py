"""PostgreSQL as a sink: the rows of an epoch and the epoch row in one transaction, which stays open until the decision.

role.sql has the minimum grants for a role; role_without_create.sql is for tables that an administrator creates.
"""
