//! What a guest boots from: kernel, initramfs and tools disk, with a checked manifest.
