"""What people type: `tandemfeed admin-server` runs the server; `tandemfeed admin` shows and operates it."""
