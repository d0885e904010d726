"""Lower bounds on ε that an audit proves."""
