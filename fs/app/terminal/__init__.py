"""What commands say to people and take from them: amounts, tables, progress, errors."""
