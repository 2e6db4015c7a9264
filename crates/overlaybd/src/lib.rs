//! The overlaybd layer format: layers, merged index, writable upper, seal and restack.
