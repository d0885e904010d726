"""An audit of a claimed ε: train with and without the attacker's rows."""
