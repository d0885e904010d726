"""An audit of a DP-SGD configuration: bounds, attacks, labels, layers and defences, section by section."""
