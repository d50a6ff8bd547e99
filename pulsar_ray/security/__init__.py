"""Says who somebody is and what a role may do, without any connection or Ray."""
