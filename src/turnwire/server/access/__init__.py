"""Access control: hosts, origins, credentials, roles, rates and folders, and the audit log. See G13."""
