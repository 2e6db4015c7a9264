//! OCI images: references, pull, and the conversion of tar layers into overlaybd layers on ext4.
