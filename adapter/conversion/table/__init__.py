"""A loaded converter table: its elements, values, converter functions and reasons for refusal."""
