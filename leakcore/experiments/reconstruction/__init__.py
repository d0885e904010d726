"""Bounding Training Data Reconstruction in DP-SGD (Hayes, Mahloujifar and Balle, 2023), figure by figure."""
