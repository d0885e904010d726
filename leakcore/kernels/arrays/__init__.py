"""Arrays of NumPy, torch and DLPack as the native core takes them."""
