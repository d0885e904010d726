"""Files that users bring and files that leakcore writes: one reader for each format, one writer for all."""
