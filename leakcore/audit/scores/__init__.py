"""An audit of membership scores that another tool made."""
