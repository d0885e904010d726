"""What there is to reproduce: names, titles, data sets and what the papers say."""
