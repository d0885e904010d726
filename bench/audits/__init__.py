"""What audits prove, measured."""
