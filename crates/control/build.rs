//! Makes Cargo notice new migrations: the macro that embeds them cannot.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
