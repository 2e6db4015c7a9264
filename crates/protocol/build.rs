//! Generates the storage daemon's gRPC types; needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "storage")]
    tonic_prost_build::compile_protos("proto/storage.proto")?;
    Ok(())
}
