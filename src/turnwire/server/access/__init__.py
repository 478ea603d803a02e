"""Who gets in: hosts, origins, credentials, roles, rates, directories; and a record of every change. See G13."""
