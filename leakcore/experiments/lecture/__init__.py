"""The lecture's curve and table, measured."""
