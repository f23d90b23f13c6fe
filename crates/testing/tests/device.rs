//! Whether the device that the suites are to run on is there.
mod common;

#[test]
fn the_device_opens() {
    let name = common::name();
    match bimetal::device(&name, Some(2)) {
        Ok(device) => {
            println!("device: {} ({})", device.info().name, device.info().kind);
            assert_eq!(device.info().kind, name.split(':').next().unwrap());
        }
        Err(e) => {
            assert_ne!(name, "cpu");
            println!("skipped: device {name}: {e}");
        }
    }
}
