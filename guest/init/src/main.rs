//! First process of a guest: mounts, enters the user's image, starts the guest daemon.

fn main() {}
