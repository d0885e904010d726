"""What runs, judges, draws and collects every experiment."""
