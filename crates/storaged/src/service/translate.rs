//! Between our types and the wire's.

use std::path::Path;

use blockdev::FrontEndError;
use image::{ImageError, ImportedImage, Progress};
use protocol::storage as wire;
use tonic::{Code, Status};

use crate::StorageError;
use crate::devices::DeviceView;

/// The wire carries text; a path that is none cannot have come from there.
pub(super) fn text(path: &Path) -> Result<String, Status> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Status::internal(format!("{} cannot be sent: it is not UTF-8", path.display())))
}

pub(super) fn device(view: DeviceView) -> Result<wire::Device, Status> {
    Ok(wire::Device {
        device_id: view.device_id,
        path: text(&view.path)?,
        virtual_size_bytes: view.virtual_size_bytes,
        read_only: view.read_only,
        lower_paths: view.lower_paths.iter().map(|path| text(path)).collect::<Result<_, _>>()?,
        upper_data_bytes: view.upper_data_bytes,
        damage: view.damage,
    })
}

pub(super) fn progress(progress: &Progress) -> wire::ImportEvent {
    let progress = wire::ImportProgress {
        phase: progress.phase.name().to_owned(),
        layer_digest: progress.layer.as_ref().map(ToString::to_string).unwrap_or_default(),
        layer_index: count(progress.layer_index),
        layer_count: count(progress.layer_count),
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
    };
    wire::ImportEvent { event: Some(wire::import_event::Event::Progress(progress)) }
}

pub(super) fn imported(image: &ImportedImage) -> Result<wire::ImportEvent, Status> {
    let image = wire::ImportedImage {
        manifest_digest: image.manifest_digest.to_string(),
        layer_paths: image.layer_paths.iter().map(|path| text(path)).collect::<Result<_, _>>()?,
        virtual_size_bytes: image.virtual_size_bytes,
        config_json: image.config_json.clone().into(),
        reused_layer_count: count(image.reused_layer_count),
    };
    Ok(wire::ImportEvent { event: Some(wire::import_event::Event::Done(image)) })
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The code tells callers what they can do, the message tells people.
pub(super) fn status(error: &StorageError) -> Status {
    let code = match error {
        StorageError::InvalidRequest(_) => Code::InvalidArgument,
        StorageError::NotFound(_) => Code::NotFound,
        StorageError::AlreadyExists { .. } => Code::AlreadyExists,
        StorageError::Unsuitable(_) => Code::FailedPrecondition,
        StorageError::Damaged { .. } => Code::DataLoss,
        StorageError::Layers { no_space: true, .. } => Code::ResourceExhausted,
        StorageError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            Code::ResourceExhausted
        }
        // A layer that a request names and that is not there is the request's fault.
        StorageError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Code::FailedPrecondition
        }
        StorageError::Layers { .. } => Code::FailedPrecondition,
        StorageError::FrontEnd(error) => front_end_code(error),
        StorageError::Image(error) => image_code(error),
        StorageError::ShuttingDown => Code::Unavailable,
        StorageError::Io { .. } | StorageError::Locked { .. } | StorageError::Internal(_) => Code::Internal,
    };
    if code == Code::Internal {
        tracing::error!(%error, "a request failed for a reason of the daemon's own");
    }
    Status::new(code, error.to_string())
}

fn front_end_code(error: &FrontEndError) -> Code {
    match error {
        FrontEndError::InvalidName { .. } | FrontEndError::InvalidSize { .. } => Code::InvalidArgument,
        FrontEndError::NotFound(_) => Code::NotFound,
        FrontEndError::NameInUse(_) => Code::AlreadyExists,
        _ => Code::Internal,
    }
}

fn image_code(error: &ImageError) -> Code {
    match error {
        ImageError::InvalidSource { .. }
        | ImageError::InvalidDigest { .. }
        | ImageError::InvalidOption(_)
        // What was named is there, but no disk can be made of it, here or anywhere.
        | ImageError::WrongPlatform { .. }
        | ImageError::NotARegistry { .. }
        | ImageError::Unsupported { .. }
        | ImageError::Damaged { .. }
        | ImageError::DigestMismatch { .. }
        | ImageError::SizeMismatch { .. }
        | ImageError::LimitExceeded { .. }
        | ImageError::Member { .. } => Code::InvalidArgument,
        ImageError::NotFound { .. } => Code::NotFound,
        ImageError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            Code::ResourceExhausted
        }
        ImageError::Cancelled => Code::Cancelled,
        // Not Unavailable: callers would take it for the daemon's own silence.
        ImageError::RegistryFailed { .. } => Code::FailedPrecondition,
        ImageError::Unauthorized { .. } => Code::PermissionDenied,
        _ => Code::FailedPrecondition,
    }
}
