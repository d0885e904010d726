"""What large jobs take, measured and planned."""
