"""The last message of each type and key of a channel, kept up with the output journal, for clients that join late."""
