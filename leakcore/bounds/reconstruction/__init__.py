"""What no reconstruction attack beats: the blow-up bound by several methods, and other bounds to compare it with."""
