"""Many independent DP-SGD runs, trained together."""
