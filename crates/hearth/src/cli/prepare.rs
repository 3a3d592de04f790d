//! `hearth prepare`: builds the template `base` and takes it into the store.

use std::process::ExitCode;
use std::sync::Arc;

use hearth_image::store::{Store, Template};
use hearth_model::limits;
use hearth_model::sandbox::Size;

use super::{Failure, Folders, Outcome};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PrepareArgs {
    #[command(flatten)]
    pub(crate) folders: Folders,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
}

/// Sizes of sandboxes from `base`, all hard limits.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Sizes {
    /// CPUs.
    #[arg(long, default_value_t = limits::DEFAULT_VCPU, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) vcpu: u32,
    /// Memory, in MiB.
    #[arg(long, default_value_t = limits::DEFAULT_MEMORY_MIB, value_parser = clap::value_parser!(u64).range(128..=1_048_576))]
    pub(crate) memory_mib: u64,
    /// Writable disk, in MiB.
    #[arg(long, default_value_t = limits::DEFAULT_DISK_MIB, value_parser = clap::value_parser!(u64).range(2048..=1_048_576))]
    pub(crate) disk_mib: u64,
}

impl Sizes {
    pub(crate) fn size(&self) -> Size {
        Size {
            vcpu: self.vcpu,
            memory_mib: self.memory_mib,
            disk_mib: self.disk_mib,
        }
    }
}

pub(crate) async fn run(args: PrepareArgs) -> Outcome {
    let (_, template) = base(args.folders, args.sizes).await?;
    println!("template base is ready ({})", template.key);
    Ok(ExitCode::SUCCESS)
}

/// Opens the store with `base` in it, building what is missing.
pub(crate) async fn base(
    folders: Folders,
    sizes: Sizes,
) -> Result<(Arc<Store>, Template), Failure> {
    let work = move || {
        let store = Store::open(&folders.state_dir)
            .map_err(|e| Failure::from_error("opening the disk store", &e))?;
        let say = |step: &str| println!("  {step}");
        let image =
            hearth_image::base::ensure(&folders.cache_dir, sizes.disk_mib, &say).map_err(|e| {
                Failure::from_error("building the template base", &e)
                    .hint("`hearth doctor` checks the host")
            })?;
        let template = store
            .import_base(&image, sizes.size())
            .map_err(|e| Failure::from_error("taking the template base in", &e))?;
        Ok((Arc::new(store), template))
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Failure::from_error("preparing", &e))?
}
