"""Downloads Wikimedia's dumps: finds their files, fetches and checks them, and marks complete folders."""
