"""What every package of leakcore uses: results, validation, files, run folders, progress and threads."""
