"""What every form of audit shares: settings, numbers in words, pages and the base of reports."""
