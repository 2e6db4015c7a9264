//! Sealing the live upper while the disk is in use.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::state::{Lowers, State};
use super::{MAX_LAYERS, Stack, StackError};
use crate::SECTOR_BYTES;
use crate::layer::Layer;
use crate::number::to_usize;
use crate::upper::{DRAIN_TIMEOUT, Upper, UpperError};

/// Bytes copied at a time when a restack is undone.
const COPY_BYTES: u64 = 1 << 20;

impl Stack {
    /// Seals the live upper into a read-only layer at `sealed_path` and continues on `new_upper`, which must be empty.
    ///
    /// Writes go to the new upper before anything is waited for: first the stack becomes new upper over old upper over
    /// layers, then writes still in flight to the old one are waited for, its index and trailer are written, the file is
    /// synced and renamed, and both directories are synced. `sealed_path` must not exist and must be on the file system of
    /// the old upper, whose index file is removed at the end.
    ///
    /// When this fails, the old upper stays in use, with what was written to the new one copied into it, and the files of
    /// `new_upper` are removed. Only when even that fails does the stack become read-only ([`StackError::Broken`]).
    ///
    /// A caller that must find everything again after a crash records both uppers and `sealed_path` before it calls, and
    /// forgets them after. After a crash in between, `sealed_path` either exists, and is complete, or does not; then the
    /// old upper opens as before and [`Upper::seal`] completes the work.
    pub fn restack(&self, mut new_upper: Upper, sealed_path: &Path) -> Result<Arc<Layer>, StackError> {
        let _one_at_a_time = self.restacking.lock().unwrap_or_else(PoisonError::into_inner);
        let (old, state) = self.sealable(sealed_path)?;
        let layers = state.lowers.layers().len() + 2;
        if layers > MAX_LAYERS {
            return Err(StackError::TooManyLayers { layers });
        }
        if new_upper.is_read_only() {
            return Err(StackError::ReadOnly);
        }
        if !new_upper.is_empty() {
            return Err(StackError::UpperNotEmpty { path: new_upper.files().data.clone() });
        }
        match new_upper.virtual_size_bytes() {
            0 => new_upper.set_virtual_size(self.virtual_size_bytes)?,
            new_bytes if new_bytes != self.virtual_size_bytes => {
                return Err(StackError::SizeMismatch {
                    new_bytes,
                    virtual_size_bytes: self.virtual_size_bytes,
                });
            }
            _ => {}
        }
        let new = Arc::new(new_upper);
        let uppers = vec![new.clone(), old.clone()];
        self.replace(State { uppers, lowers: state.lowers.clone(), broken: None });
        match seal_below(&old, &state.lowers, sealed_path) {
            Ok((layer, lowers)) => {
                self.replace(State { uppers: vec![new], lowers: Arc::new(lowers), broken: None });
                Ok(layer)
            }
            Err(error) => Err(self.undo(&new, &old, &state.lowers, error)),
        }
    }

    /// Seals the live upper into a read-only layer at `sealed_path`. The stack is read-only afterwards; writes that
    /// arrive meanwhile wait and are refused. When this fails, the upper stays in use.
    pub fn seal(&self, sealed_path: &Path) -> Result<Arc<Layer>, StackError> {
        let _one_at_a_time = self.restacking.lock().unwrap_or_else(PoisonError::into_inner);
        let (old, state) = self.sealable(sealed_path)?;
        match seal_below(&old, &state.lowers, sealed_path) {
            Ok((layer, lowers)) => {
                self.replace(State { uppers: Vec::new(), lowers: Arc::new(lowers), broken: None });
                Ok(layer)
            }
            Err(error) => {
                old.unseal();
                // The same state again, for the writes that found the upper closed.
                self.replace(State { uppers: vec![old], lowers: state.lowers.clone(), broken: None });
                Err(error)
            }
        }
    }

    fn sealable(&self, sealed_path: &Path) -> Result<(Arc<Upper>, Arc<State>), StackError> {
        let state = self.state();
        state.check_not_broken()?;
        let upper = state.uppers.first().ok_or(StackError::ReadOnly)?.clone();
        upper.check_sealable(sealed_path)?;
        Ok((upper, state))
    }

    /// Brings the stack back to the old upper after a failed seal.
    fn undo(
        &self,
        new: &Arc<Upper>,
        old: &Arc<Upper>,
        lowers: &Arc<Lowers>,
        cause: StackError,
    ) -> StackError {
        let undone = State { uppers: vec![old.clone()], lowers: lowers.clone(), broken: None };
        // The new files go before the old upper is written again: found after a crash, they would lie on top of it and hide
        // what was written since.
        match copy_back(new, old, &undone).and_then(|()| Ok(new.remove_files()?)) {
            Ok(()) => {
                self.replace(undone);
                cause
            }
            Err(error) => {
                let (old_path, new_path) = (old.data_path().to_owned(), new.data_path().to_owned());
                let broken =
                    |reason| StackError::Broken { reason, old: old_path.clone(), new: new_path.clone() };
                let reason = format!("{cause}; then {error}");
                self.replace(State {
                    uppers: vec![new.clone(), old.clone()],
                    lowers: lowers.clone(),
                    broken: Some(Arc::new(broken(reason.clone()))),
                });
                broken(reason)
            }
        }
    }
}

fn seal_below(old: &Upper, lowers: &Lowers, sealed_path: &Path) -> Result<(Arc<Layer>, Lowers), StackError> {
    let layer = old.close_and_seal(sealed_path)?;
    // Everything that can fail comes before the layer gets its name.
    let lowers = lowers.with(layer.clone())?;
    old.publish(sealed_path)?;
    Ok((layer, lowers))
}

/// Writes what the new upper has got meanwhile into the old one. Flushes of it were acknowledged, so the old one is
/// flushed too.
fn copy_back(new: &Upper, old: &Upper, undone: &State) -> Result<(), StackError> {
    if !new.gate().close(DRAIN_TIMEOUT) {
        return Err(UpperError::WritesInFlight {
            path: new.data_path().to_owned(),
            timeout_ms: DRAIN_TIMEOUT.as_millis(),
        }
        .into());
    }
    old.unseal();
    let below = undone.below_upper(0);
    let runs: Vec<_> = new.live().iter().collect();
    if runs.is_empty() {
        return Ok(());
    }
    let mut buffer = vec![0; to_usize(COPY_BYTES)];
    for run in runs {
        let Some(data_sector) = run.data_sector else {
            old.write_zeroes(run.start, run.end, &below)?;
            continue;
        };
        let mut sector = run.start;
        while sector < run.end {
            let sectors = (run.end - sector).min(COPY_BYTES / SECTOR_BYTES);
            let bytes = &mut buffer[..to_usize(sectors * SECTOR_BYTES)];
            let offset_bytes = (data_sector + sector - run.start) * SECTOR_BYTES;
            new.data_file()
                .read_exact_at(bytes, offset_bytes)
                .map_err(UpperError::file("read", new.data_path()))?;
            old.write(bytes, sector, &below)?;
            sector += sectors;
        }
    }
    Ok(old.flush()?)
}
