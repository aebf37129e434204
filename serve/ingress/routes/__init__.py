"""The endpoints: what each asks of which deployment."""
