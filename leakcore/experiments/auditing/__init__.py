"""Auditing Differentially Private Machine Learning (Jagielski, Ullman and Oprea, 2020), figure by figure."""
