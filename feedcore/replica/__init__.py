"""What an adapter decides, follows and produces for each of its channels."""
