export async function checkLive() {}
