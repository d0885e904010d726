"""What every report shares: verdict, findings, tables, figures, page and terminal text."""
